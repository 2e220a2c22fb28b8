/*
 * Least squares over faded measurements. Where sizes hardly differ, or the line would fall or start below 0,
 * the data do not tell the two parts apart: then the nearest line that makes sense is taken.
 */
#include "cachestore/policy/rate.h"

#define FADE         0.8 /* of all before, at each new measurement */
#define LEAST_SPREAD 0.1 /* standard deviation of sizes over their mean */

void rate_learn(struct rate *r, double bytes, double us)
{
    if (!(bytes > 0) || !(us >= 0))
        return;
    *r = (struct rate){FADE * r->n + 1, FADE * r->x + bytes, FADE * r->y + us, FADE * r->xx + bytes * bytes,
                       FADE * r->xy + bytes * us};
}

bool rate_line(const struct rate *r, double *latency_us, double *us_a_byte)
{
    if (!(r->n > 0))
        return false;
    double x = r->x / r->n, y = r->y / r->n;
    double variance = r->xx / r->n - x * x, covariance = r->xy / r->n - x * y;
    double most = y / x, slope = most;
    if (variance > LEAST_SPREAD * LEAST_SPREAD * x * x)
        slope = covariance / variance;
    if (slope < 0)
        slope = 0;
    if (slope > most)
        slope = most;
    *us_a_byte = slope;
    *latency_us = slope < most ? y - slope * x : 0;
    return true;
}

double rate_predict_us(const struct rate *r, double bytes)
{
    double latency_us, us_a_byte;
    return rate_line(r, &latency_us, &us_a_byte) ? latency_us + bytes * us_a_byte : 0;
}
