package sparkdl.comm.transport

import java.util.concurrent.{CompletableFuture, ConcurrentHashMap, Executors, TimeUnit}

/**
 * For emulated networks only: blocks whose fetches start up as slowly as on a cluster that looks servers up and connects to
 * them each time. Of the fetches from one server one starts up at a time, which takes `startupNanos`; meanwhile those that
 * have started go on.
 */
private[comm] final class SlowStart(blocks: Blocks, startupNanos: Long) extends Blocks {
  private val starters = Executors.newScheduledThreadPool(
    1,
    task => {
      val thread = new Thread(task, "sparkdl-lab-startup")
      thread.setDaemon(true)
      thread
    }
  )

  /** When the last start-up from each server ends, by System.nanoTime. */
  private val ends = new ConcurrentHashMap[BlockServer, java.lang.Long]

  override def fetch(from: BlockServer, job: Long, name: String, sink: BlockSink): CompletableFuture[Void] =
    if (from == here) blocks.fetch(from, job, name, sink)
    else {
      val now = System.nanoTime
      val end = ends.compute(from, (_, last) => (if (last == null) now else math.max(now, last)) + startupNanos)
      val started = new CompletableFuture[Void]
      starters.schedule(() => started.complete(null), end - now, TimeUnit.NANOSECONDS)
      started.thenCompose(_ => blocks.fetch(from, job, name, sink))
    }

  /** Every block is fetched, so that every one starts up. */
  override def fetchAbove: Long = 0
  override def here: BlockServer = blocks.here
  override def put(job: Long, name: String, chunks: Array[java.nio.ByteBuffer]): Unit = blocks.put(job, name, chunks)
  override def retire(job: Long, name: String, over: () => Boolean): Boolean = blocks.retire(job, name, over)
  override def status(job: Long, name: String): Option[(Long, Long)] = blocks.status(job, name)
}

private[comm] object SlowStart {

  /**
   * A JVM's property, not a key of Spark's conf: nobody sets it but who emulates a network. Seconds. Spark refuses to start
   * executors with properties that begin as its own do.
   */
  val Property = "lab.sparkdl.startupSeconds"

  def wrap(blocks: Blocks): Blocks =
    sys.props.get(Property).fold(blocks)(seconds => new SlowStart(blocks, (seconds.toDouble * 1e9).toLong))
}
