// How many rows a temporary has: a word of the step, or a number that is always the same.

const FIXED_COUNT: u32 = 0x80000000u;
// Workgroups that stand side by side in one direction, when there is one for each row.
const MOST_SIDE_BY_SIDE: u32 = 65535u;

fn row_count(count: u32) -> u32 {
    if (count >= FIXED_COUNT) {
        return count - FIXED_COUNT;
    }
    return step[count];
}

fn row_of(wg: vec3<u32>) -> u32 {
    return wg.y + wg.z * MOST_SIDE_BY_SIDE;
}
