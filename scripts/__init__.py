"""The programs: flags -> a configuration -> one library call; no module imports them.

`setup.py` installs this folder as `placeto_tf.scripts`, where console programs
(`placeto-place`, ...) find it and nobody else's `scripts` is in the way.
"""
