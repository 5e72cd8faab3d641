"""Commands of `kinemill train`, one module each; the module's name is the command's."""
