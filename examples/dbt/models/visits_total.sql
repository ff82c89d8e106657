SELECT sum(visits)::BIGINT AS visits FROM {{ ref("visits_daily") }}
