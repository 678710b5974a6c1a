"""The admission webhook: every answer from the request alone, no object is ever written for one."""
