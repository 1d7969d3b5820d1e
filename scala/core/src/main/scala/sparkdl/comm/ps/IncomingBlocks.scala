package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.util.concurrent.{
  CompletableFuture,
  CompletionException,
  ConcurrentHashMap,
  ExecutionException,
  Executor,
  TimeoutException
}
import java.util.function.{BiFunction, Function => JFunction}

import sparkdl.comm.CommException
import sparkdl.comm.flow.{Fetch, RemoteBlock}
import sparkdl.comm.transport.ChunkPeer

/** Incoming data of one rank: the other ranks' notices and blocks, and the failure that ends all waits for them. */
private[ps] final class IncomingBlocks(job: Long, rank: Int, node: PsNode) {
  private val notices = new ConcurrentHashMap[(Notice.Kind, Int, Int, Long), CompletableFuture[Notice]]
  private val contributions = new ConcurrentHashMap[(Long, Int), CompletableFuture[Array[Byte]]]
  private val failure = new CompletableFuture[Nothing]
  @volatile private var peers: IndexedSeq[ChunkPeer] = IndexedSeq.empty
  @volatile private var patienceNanos = 0L

  private val fetching = ConcurrentHashMap.newKeySet[Fetch]

  val neighbors = new Neighbors(job)

  /** Reader of blocks, for each rank on this host. One thread for each is enough. */
  private val readers = new ConcurrentHashMap[Int, Executor]

  /** Return a future that completes when rank `from` has published a block. */
  def notice(kind: Notice.Kind, from: Int, bucket: Int, version: Long): CompletableFuture[Notice] =
    notices.computeIfAbsent((kind, from, bucket, version), _ => new CompletableFuture[Notice])

  def onNotice(notice: Notice): Unit =
    this.notice(notice.kind, notice.from, notice.bucket, notice.version).complete(notice)

  def forget(kind: Notice.Kind, from: Int, bucket: Int, version: Long): Unit =
    notices.remove((kind, from, bucket, version))

  /** Return a future that completes when rank `from` has sent its part of this round of a [[Gathering]]. */
  def contribution(round: Long, from: Int): CompletableFuture[Array[Byte]] =
    contributions.computeIfAbsent((round, from), _ => new CompletableFuture[Array[Byte]])

  def onContribution(contribution: Contribution): Unit =
    this.contribution(contribution.round, contribution.from).complete(contribution.part)

  def forgetRound(round: Long): Unit = peers.indices.foreach(from => contributions.remove((round, from)))

  /** End every wait, now and later, with `cause`. Only the first cause counts. */
  def fail(cause: CommException): Unit =
    if (failure.completeExceptionally(cause)) fetching.forEach(_.cancel())

  def hasFailed: Boolean = failure.isCompletedExceptionally

  def checkNotFailed(): Unit = if (hasFailed) throw firstFailure

  /**
   * Set the peers. Call it before blocks are fetched.
   *
   * @param peers by rank
   * @param patienceNanos nanoseconds that a block may take
   */
  def open(peers: IndexedSeq[ChunkPeer], patienceNanos: Long): Unit = {
    this.peers = peers
    this.patienceNanos = patienceNanos
  }

  /**
   * Fetch the parameters of a slice of rank `from`'s shard into `sink`, once they are published and `before` is
   * complete.
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
    val ready = before.thenCombine[Notice, Notice](notice(Notice.Parameters, from, bucket, version), take)
    fetch(from, sink, BlockNames.parameters(from, bucket, version), ready)(_.parameters(slice, version, _))
  }

  /** Fetch rank `from`'s gradients of a slice of this rank's shard into `sink`, once they are published. */
  def gradients(from: Int, bucket: Int, version: Long, slice: ShardSlice, sink: SegmentSink): BlockFetch = {
    val ready = notice(Notice.Gradients, from, bucket, version)
    fetch(from, sink, BlockNames.gradients(from, rank, bucket, version), ready)(_.gradients(slice, _))
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
    def onFailure(cause: Throwable): Unit = fail(describe(cause, s"fetch block $name from rank $from", from))
    def read(reading: Reading): BlockFetch.InProgress = {
      val reader = readers.computeIfAbsent(from, _ => new SerialExecutor(node.pool))
      @volatile var begun = 0L
      val done: Runnable = () => {
        checkNotFailed()
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
    if (hasFailed) fetch.cancel()
    fetch
  }

  /**
   * Run `work` once `ready` are complete. If it fails, the session fails.
   *
   * @param small true if the work takes less time than waking another thread for it
   */
  def compute[T](what: String, small: Boolean, ready: CompletableFuture[Void]*)(work: => T): CompletableFuture[T] = {
    val run: JFunction[Void, T] = _ => work
    val all = CompletableFuture.allOf(ready: _*)
    (if (small) all.thenApply[T](run) else all.thenApplyAsync[T](run, node.pool))
      .whenComplete((_, cause) => if (cause != null) fail(describe(cause, what, rank)))
  }

  /** Wait for `done` until `deadline` of the node's clock. `timeoutError` makes the exception of a wait that took too long. */
  def await(done: CompletableFuture[_], deadline: Long)(timeoutError: => CommException): Unit =
    try node.clock.await(CompletableFuture.anyOf(done, failure), deadline)
    catch {
      case e: ExecutionException => throw (if (hasFailed) firstFailure else e.getCause)
      case _: TimeoutException => throw timeoutError
    }

  private def firstFailure: Throwable =
    try failure.join()
    catch { case e: CompletionException => e.getCause }

  private def describe(cause: Throwable, what: String, peer: Int): CommException = cause match {
    case known: CommException => known
    case wrapped: CompletionException if wrapped.getCause != null => describe(wrapped.getCause, what, peer)
    case other => new CommException(CommException.PeerLost, s"rank $rank could not $what: $other", peer, other)
  }
}
