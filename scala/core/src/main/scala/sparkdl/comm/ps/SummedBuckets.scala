package sparkdl.comm.ps

import java.util.BitSet

/**
 * Count of the buckets of gradients whose sums are ready, from the first one on. Any number of threads may use it at
 * once.
 */
private[ps] final class SummedBuckets {
  private val done = new BitSet

  // The worker reads this value between layers of its backward pass, where it must not wait for an answer.
  @volatile private var told = 0L

  /** Begin another version, which has no sums yet. */
  def clear(): Unit = synchronized(done.clear())

  /**
   * Record that the sum of a bucket is ready.
   *
   * @param tell called with the new value of [[SegmentMap.summed]]
   */
  def add(version: Long, bucket: Int)(tell: Long => Unit): Unit = synchronized {
    done.set(bucket)
    told = version * SegmentMap.SummedVersion + done.nextClearBit(0)
    tell(told)
  }

  /** Return how many buckets of `version` are ready. */
  def of(version: Long): Int = {
    val now = told
    if (now / SegmentMap.SummedVersion == version) (now % SegmentMap.SummedVersion).toInt else 0
  }
}
