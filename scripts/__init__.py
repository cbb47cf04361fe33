"""The programs: each turns flags into a configuration and makes one library call.

No module imports them. `setup.py` installs this folder as `placeto_tf.scripts`, so that console
programs (`placeto-place`, ...) find it and it does not clash with another package's `scripts`.
"""
