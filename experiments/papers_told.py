"""stub"""
__all__ = ["told"]
def told(found, sizes):
    return {"a": "b"}
