"""Changes what happens inside a UNet call: ControlNets and FreeU."""
