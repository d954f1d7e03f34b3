"""Who talks to whom: messages, and the engines that carry them."""
