"""Floor 5: replica of PALEO as released, including its errors.

Source: Qi, Sparks, Talwalkar, "Paleo: A Performance Model for Deep Neural Networks", ICLR 2017, and the code that its
authors released (github TalwalkarLab/paleo). The code was read, not copied. Each module names the file of the release
that it reproduces; ``docs/paleo.md`` lists the errors of the release and the effect of each.

Terms of the release, and the corresponding terms here:

==================================================  ==================================================
``ppp_comp``, ``ppp_comm``                          ``ppp``, ``ppp_comm``
``use_pipeline``                                    ``concurrent``
``bwd_data``, ``bwd_filter``                        ``backward_data``, ``backward_weight``
``OneToAll``, ``TreeAllReduce``                     ``one-to-all``, ``tree``
``ButterflyAllReduce``, ``ButterflyMixing``         ``butterfly``, ``butterfly-mixing``
``software`` of the web demo                        a row of ``scale.PLATFORMS``
commits b12c04b (the web demo's) and 984bbf5        ``first`` and ``last`` of `REVISIONS`
==================================================  ==================================================
"""

REVISIONS = ("first", "last")

REPLICAS = ("paleo", "paleo-last")
"""Released PALEO, in its first and in its last revision."""
