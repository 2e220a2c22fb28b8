/*
 * Least squares over faded measurements, each weighted by one over the time it took: how far times scatter
 * grows with them, and unweighted the scatter of long ones alone would say what short ones are predicted to
 * take. (One over its square fits short ones a little better, and is later to follow a disk that becomes
 * slow.) Where sizes hardly differ, or the line would fall or start below 0, the data do not tell the two
 * parts apart: then the nearest line that makes sense is taken.
 */
#include "cachestore/policy/rate.h"

#define FADE         0.7 /* of all before, at each new measurement */
#define LEAST_SPREAD 0.1 /* standard deviation of sizes over their mean */

void rate_learn(struct rate *r, double bytes, double us)
{
    if (!(bytes > 0) || !(us >= 0))
        return;
    double w = us > 1 ? 1 / us : 1;
    *r = (struct rate){FADE * r->n + w, FADE * r->x + w * bytes, FADE * r->y + w * us,
                       FADE * r->xx + w * bytes * bytes, FADE * r->xy + w * bytes * us};
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
