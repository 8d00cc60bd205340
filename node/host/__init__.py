"""What any daemon needs: transport, keys, control socket, driver."""
