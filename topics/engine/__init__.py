"""The rules of topics. Time is an argument; what must happen is the result."""
