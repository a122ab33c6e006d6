"""What changes a UNet's answer from inside: ControlNets and FreeU."""
