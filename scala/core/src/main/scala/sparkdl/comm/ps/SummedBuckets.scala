package sparkdl.comm.ps

import java.util.BitSet

/**
 * Count of the buckets of gradients whose sums are ready, from the first one on. Any number of threads may use it at
 * once.
 */
private[ps] final class SummedBuckets {
  private val done = new BitSet

  // The worker reads this value between layers of its backward pass, where it must not wait for an answer.
  @volatile private var value = 0L

  /** Begin another version, which has no sums yet. */
  def clear(): Unit = synchronized(done.clear())

  /**
   * Record that the sum of a bucket is ready.
   *
   * @param publish called with the new value of [[SegmentMap.summed]]
   */
  def add(version: Long, bucket: Int)(publish: Long => Unit): Unit = synchronized {
    done.set(bucket)
    value = version * SegmentMap.SummedVersion + done.nextClearBit(0)
    publish(value)
  }

  /** Return how many buckets of `version` are ready. */
  def count(version: Long): Int = {
    val now = value
    if (now / SegmentMap.SummedVersion == version) (now % SegmentMap.SummedVersion).toInt else 0
  }
}
