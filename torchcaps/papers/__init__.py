"""The papers as clients of the library: recipes, tables and recorded results.

`papers/<paper>/` has one file per table or figure; a paper is imported when one of its recipes is
named.
"""
