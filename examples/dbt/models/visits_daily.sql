{# With --vars '{day: 2026-11-02}' only that day is computed and replaced. #}
{% set day = var("day", none) %}
{{ config(icedb={
    "partition_by": ["day"],
    "sort_by": ["day"],
    "partitions": "day = '" ~ day ~ "'" if day else none,
}) }}
SELECT day, count(*) AS visits, count(DISTINCT user_id) AS users
FROM {{ source("lake", "visits") }}
{% if day %} WHERE day = '{{ day }}' {% endif %}
GROUP BY day
