"""The API of AUTOMATIC1111's WebUI, version 1.10, below `/sdapi/v1`."""
