"""The words of the field: frozen structs, units, findings, events, errors and ports. No I/O, nothing imported but msgspec."""
