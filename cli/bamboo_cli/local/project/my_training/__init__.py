"""The model and the data of this job."""
