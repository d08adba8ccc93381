#ifndef RALLYPOINT_WORLD_H
#define RALLYPOINT_WORLD_H

/* Has this worker leave its world: the workers have agreed on the step that it has reported. */
void world_depart(void);

#endif
