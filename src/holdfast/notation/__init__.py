"""READ AND WRITE what people type: durations, rates, backoffs, filters, and the fields of a job."""
