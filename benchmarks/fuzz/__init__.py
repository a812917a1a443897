"""Random small problems of all kinds, of which the truth is known: does the answer, or the verdict, agree with it?"""
