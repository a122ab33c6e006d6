"""What is done for every request, before and after its route."""
