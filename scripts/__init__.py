"""The programs: flags -> a configuration -> one library call; no module imports them.

`setup.py` installs this folder as `placeto_tf.scripts`, so that console programs
(`placeto-place`, ...) find it and no other package's `scripts` is in the way.
"""
