"""The S3 protocol, without I/O: requests, addresses, pages of listings, responses, errors. Begin with `request`."""
