"""An instance of an application: its control thread, and the parts that it joins."""
