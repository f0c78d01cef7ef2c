"""The rules of topics: values in, values out. Time is an argument; what must happen is the result."""
