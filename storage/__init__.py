"""Storage of images and other objects, and values that are derived from the service's secret."""
