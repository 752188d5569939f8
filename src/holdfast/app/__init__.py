"""The Python API: `Holdfast`, its tasks and job handles, and the blocking façade."""
