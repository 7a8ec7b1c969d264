"""One file per residual design: its name is the design key, its class is `Residual` (interface: `base`)."""
