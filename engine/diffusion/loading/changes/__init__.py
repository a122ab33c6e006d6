"""What files of LoRAs and their kin change in a network: which layers, and how."""
