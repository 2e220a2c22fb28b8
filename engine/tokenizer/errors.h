/* Error codes of the engine's rooms. 0 or negative; eng_strerror names them. */
#ifndef ISOTHERM_ENGINE_ERRORS_H
#define ISOTHERM_ENGINE_ERRORS_H

enum {
    ENG_OK = 0,
    ENG_ENOMEM = -1,
    ENG_EINVAL = -2, /* the caller's argument; becomes a 400 */
    ENG_EIO = -3,
    ENG_EFORMAT = -4,      /* a model file that breaks its format */
    ENG_EUNSUPPORTED = -5, /* well formed, but something we do not do; the message names it */
    ENG_EFULL = -6,        /* the queue or the memory is full; becomes a 429 or 503 */
    ENG_ENOTFOUND = -7,
};
const char *eng_strerror(int code);

#endif
