"""The S3 protocol, pure: requests, addresses, pages of listings, responses and errors. Begin with `request`."""
