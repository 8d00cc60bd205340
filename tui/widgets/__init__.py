"""One family of widgets a file; what they draw is made by functions of one `Scene`."""
