"""How columns write what they hold, and tables what they leave out."""

from paleo_lite.report import notation
from paleo_lite.report.document import Column, Table


def test_one_value_in_each_notation():
    said = {name: function(1234.5678) for name, function in vars(notation).items() if name.startswith("say_")}
    assert said == {
        "say_time": "1.235 ks",
        "say_time_briefly": "1.23 ks",
        "say_size": "1.235 kB",
        "say_size_briefly": "1.23 kB",
        "say_bandwidth": "1.235 kB/s",
        "say_percent": "123456.8%",
        "say_whole_percent": "123457%",
        "say_count": "1,234.5678",
        "say_three_digits": "1.23e+03",
        "say_yes_or_no": "yes",
    }


def test_a_table_says_how_many_of_its_rows_it_lists_where_not_all():
    table = Table("Steps", [Column("step", "step")], [{"step": 1}, {"step": 2}, {"step": 3}])
    assert (table.first(2, "the longest ").title, len(table.first(2).rows)) == ("Steps, the longest 2 of 3", 2)
    assert table.first(None) is table and table.first(3) is table
