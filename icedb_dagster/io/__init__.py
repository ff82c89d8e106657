"""The IO manager: assets are stored as tables, and tables are loaded as inputs. Begin with `io_manager`."""
