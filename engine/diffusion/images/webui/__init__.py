"""Images and masks as the WebUI has them on their way into img2img and back: in whole levels."""
