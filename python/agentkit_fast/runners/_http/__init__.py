"""What `HttpRunner` is made of: rules without I/O, and two small drivers that perform them."""
