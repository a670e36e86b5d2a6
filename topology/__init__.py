"""What a program is: DSL, graph and compiler. No I/O, no threads, no clock."""
