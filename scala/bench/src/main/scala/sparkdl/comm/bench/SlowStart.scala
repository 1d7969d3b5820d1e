// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bench

import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, ConcurrentHashMap}

import sparkdl.comm.{Clock, SystemClock}
import sparkdl.comm.transport._

/** Wrapper of the transport in executors whose JVM has the property [[SlowStart.Property]]. */
final class SlowStart extends TransportWrapper {
  override def wrap(transport: Transport): Transport =
    sys.props.get(SlowStart.Property).fold(transport) { seconds =>
      new Transport {
        override def host: String = transport.host
        override val blocks: Blocks = new FetchedBlocks(transport.blocks)
        override def openNetwork(
            firstPort: Int,
            portCount: Int,
            receiver: PeerMessageReceiver
        ): ChunkNetwork = {
          val network = transport.openNetwork(firstPort, portCount, receiver)
          new SlowStartNetwork(network, (seconds.toDouble * 1e9).toLong, SystemClock)
        }
      }
    }
}

object SlowStart {

  /**
   * Property of the JVM with the seconds of a start-up. It is not a key of Spark's conf, as only
   * emulated networks use it. Spark does not start executors with properties that begin as its own
   * do.
   */
  val Property = "lab.sparkdl.startupSeconds"
}

/** Blocks that are never inline, so that every one is fetched and starts up. */
private[bench] final class FetchedBlocks(blocks: Blocks) extends Blocks {
  override def inlineThreshold: Long = 0
  override def executorId: String = blocks.executorId
  override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit =
    blocks.put(job, name, chunks)
  override def retire(job: Long, name: String, isOver: () => Boolean): Boolean =
    blocks.retire(job, name, isOver)
  override def status(job: Long, name: String): Option[(Long, Long)] = blocks.status(job, name)
  override def read(job: Long, name: String)(take: ByteBuffer => Unit): Unit =
    blocks.read(job, name)(take)
}

/**
 * Network whose fetches start up as slowly as on a cluster that looks servers up and connects to
 * them each time. It is for emulated networks only. Blocks of one server start up one at a time,
 * for `startupNanos` each. Blocks that have started go on meanwhile. A block starts up with its
 * first chunk, and its other chunks wait for that.
 */
private[bench] final class SlowStartNetwork(network: ChunkNetwork, startupNanos: Long, clock: Clock)
    extends ChunkNetwork {
  import SlowStartNetwork._

  /** Time when the last start-up from each server ends, by `clock`. */
  private val ends = new ConcurrentHashMap[ChunkPeer, java.lang.Long]
  private val starting = new ConcurrentHashMap[(ChunkPeer, Long, String), CompletableFuture[Void]]

  override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
      done: Option[ChunkFailure] => Unit
  ): ChunkFetch = {
    val block = (from, chunk.job, chunk.block)
    def start(): ChunkFetch = network.fetch(from, chunk, into, deadline)(done)
    if (chunk.offset == 0) startUp(block)
    Option(starting.get(block)).fold(start()) { started =>
      val delayed = new DelayedFetch(() => start(), done)
      started.thenRun(() => delayed.start())
      delayed
    }
  }

  private def startUp(block: (ChunkPeer, Long, String)): Unit = {
    val now = clock.nanoTime
    val end = ends.compute(
      block._1,
      (_, last) => (if (last == null) now else math.max(now, last)) + startupNanos
    )
    val started = new CompletableFuture[Void]
    starting.put(block, started)
    clock.after(end - now) {
      starting.remove(block)
      started.complete(null)
    }
  }

  override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit =
    network.send(to, part)(done)
  override def address: ChunkPeer = network.address
  override def sending: Int = network.sending
  override def probe(peers: Iterable[ChunkPeer]): CompletableFuture[Void] = network.probe(peers)
  override def close(): Unit = network.close()
}

private object SlowStartNetwork {

  /** Fetch that begins when `start` is called. */
  private final class DelayedFetch(begin: () => ChunkFetch, done: Option[ChunkFailure] => Unit)
      extends ChunkFetch {
    private var fetch = Option.empty[ChunkFetch]
    private var cancelled = false

    def start(): Unit = synchronized(if (!cancelled) fetch = Some(begin()))

    override def cancel(): Unit = {
      val begun = synchronized {
        cancelled = true
        fetch
      }
      begun.fold(done(Some(new ChunkFailure.Cancelled("it was cancelled before it started"))))(
        _.cancel()
      )
    }
  }
}
