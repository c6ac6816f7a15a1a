"""From a wrong output to what the kernel does wrong, in attention terms."""
