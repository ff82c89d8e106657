"""A browser can be driven; none is brought."""

from playwright.sync_api import sync_playwright

with sync_playwright() as driver:
    assert driver.chromium.name == "chromium"
