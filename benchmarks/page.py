def write(body): pass
