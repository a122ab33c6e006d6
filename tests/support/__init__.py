"""What tests stand on: fakes, real servers, and the data that they are given."""
