"""What the laboratory costs: `make bench` measures it into results/benchmarks/ and the tables of benchmarks/README.md.

`ratios` sets each piece beside its plain baseline, `growth` gives it 1, 2, 4 and 8 times the data, `workers` puts it
on Ray, `search` fills tables of up to a million windows, `limits` says how fast the machine could be. `page` reads.
"""
