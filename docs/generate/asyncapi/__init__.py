"""The AsyncAPI document of the events that subscribers get."""
