// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.util.ArrayDeque
import java.util.concurrent.{CompletableFuture, CompletionException, ConcurrentHashMap, Executor}
import java.util.function.{BiFunction, Function => JFunction}

import sparkdl.comm.CommException
import sparkdl.comm.flow.{Fetch, RemoteBlock}
import sparkdl.comm.transport.ChunkPeer

/**
 * Incoming blocks of one rank.
 *
 * @param peers by rank
 * @param patienceNanos nanoseconds that a block may take
 */
private[ps] final class IncomingBlocks(
    job: Long,
    rank: Int,
    node: PsNode,
    inbox: Inbox,
    neighbors: Neighbors,
    peers: IndexedSeq[ChunkPeer],
    patienceNanos: Long
) {
  private val fetching = ConcurrentHashMap.newKeySet[Fetch]
  inbox.onFailure(() => fetching.forEach(_.cancel()))

  /** Reader of blocks, for each rank on this host. One thread for each is enough. */
  private val readers = new ConcurrentHashMap[Int, Executor]

  /**
   * Fetch the parameters of a slice of rank `from`'s shard into `sink`, once they are published and
   * `before` is complete.
   */
  def parameters(
      from: Int,
      bucket: Int,
      version: Long,
      slice: ShardSlice,
      sink: SegmentSink,
      before: CompletableFuture[Void]
  ): BlockFetch = {
    val take: BiFunction[Void, Notice, Notice] = (_, notice) => notice
    val ready = before.thenCombine[Notice, Notice](
      inbox.notice(Notice.Parameters, from, bucket, version),
      take
    )
    fetch(from, sink, BlockNames.parameters(from, bucket, version), ready)(_.parameters(
      slice,
      version,
      _
    ))
  }

  /**
   * Fetch rank `from`'s gradients of a slice of this rank's shard into `sink`, once they are
   * published.
   */
  def gradients(
      from: Int,
      bucket: Int,
      version: Long,
      slice: ShardSlice,
      sink: SegmentSink
  ): BlockFetch = {
    val ready = inbox.notice(Notice.Gradients, from, bucket, version)
    fetch(from, sink, BlockNames.gradients(from, rank, bucket, version), ready)(_.gradients(
      slice,
      _
    ))
  }

  /** Function that passes a block on, piece by piece. */
  private type Reading = (ByteBuffer => Unit) => Unit

  /**
   * Fetch a block once its notice is `ready`.
   *
   * @param inMemory reads a block of so many bytes from the memory of its rank
   */
  private def fetch(
      from: Int,
      sink: SegmentSink,
      name: String,
      ready: CompletableFuture[Notice]
  )(inMemory: (Neighbor, Long) => Reading): BlockFetch = {
    val peer = peers(from)
    val isElsewhere = peer.executor != node.blocks.executorId
    def onFailure(cause: Throwable): Unit =
      inbox.fail(describe(cause, s"fetch block $name from rank $from", from))
    def read(reading: Reading): BlockFetch.InProgress = {
      val reader = readers.computeIfAbsent(from, _ => new SerialExecutor(node.pool))
      @volatile var begun = 0L
      val done: Runnable = () => {
        inbox.checkNotFailed()
        begun = node.clock.nanoTime
        reading(sink.wholeBlock.write)
      }
      BlockFetch.InProgress(() => begun, CompletableFuture.runAsync(done, reader))
    }
    def fetchRemote(bytes: Long): BlockFetch.InProgress = {
      val fetch = node.fetcher.fetch(RemoteBlock(peer, job, name, bytes), patienceNanos, sink)
      BlockFetch.InProgress(() => fetch.askedNanos, track(fetch).done)
    }
    def start(bytes: Long): BlockFetch.InProgress =
      if (!isElsewhere) read(node.blocks.read(job, name))
      else neighbors(from).fold(fetchRemote(bytes))(neighbor => read(inMemory(neighbor, bytes)))
    new BlockFetch(from, isElsewhere, sink, node.clock, ready, start, onFailure)
  }

  private def track(fetch: Fetch): Fetch = {
    fetching.add(fetch)
    fetch.done.whenComplete((_, _) => fetching.remove(fetch))
    if (inbox.hasFailed) fetch.cancel()
    fetch
  }

  /**
   * Run `work` once `ready` are complete. If it fails, the session fails.
   *
   * @param small true if the work takes less time than waking another thread for it
   */
  def compute[T](
      what: String,
      small: Boolean,
      ready: CompletableFuture[Void]*
  )(work: => T): CompletableFuture[T] = {
    val run: JFunction[Void, T] = _ => work
    val all = CompletableFuture.allOf(ready: _*)
    (if (small) all.thenApply[T](run) else all.thenApplyAsync[T](run, node.pool))
      .whenComplete((_, cause) => if (cause != null) inbox.fail(describe(cause, what, rank)))
  }

  private def describe(cause: Throwable, what: String, peer: Int): CommException = cause match {
    case known: CommException => known
    case wrapped: CompletionException if wrapped.getCause != null =>
      describe(wrapped.getCause, what, peer)
    case other =>
      new CommException(CommException.PeerLost, s"rank $rank could not $what: $other", peer, other)
  }
}

/**
 * Executor that runs tasks one at a time, in order. It occupies a thread of `pool` only while it
 * has tasks. Tasks must not throw, as those of a CompletableFuture.
 */
private[ps] final class SerialExecutor(pool: Executor) extends Executor {
  private val waiting = new ArrayDeque[Runnable]
  private var isRunning = false

  override def execute(task: Runnable): Unit = synchronized {
    waiting.add(task)
    if (!isRunning) {
      pool.execute(() => runAll())
      isRunning = true
    }
  }

  private def runAll(): Unit =
    Iterator.continually(next()).takeWhile(_.isDefined).flatten.foreach(_.run())

  private def next(): Option[Runnable] = synchronized {
    val task = Option(waiting.poll())
    isRunning = task.isDefined
    task
  }
}
