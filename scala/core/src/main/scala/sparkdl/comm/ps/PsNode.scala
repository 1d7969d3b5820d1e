// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.util.concurrent.{
  CompletableFuture,
  ConcurrentHashMap,
  ExecutorService,
  Executors,
  ThreadFactory,
  TimeUnit,
  TimeoutException
}
import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

import scala.jdk.CollectionConverters._

import com.codahale.metrics.{Gauge, MetricRegistry}

import org.apache.spark.internal.Logging

import sparkdl.comm.{Callbacks, Clock, CommConf, CommException, SpareMemory, SystemClock}
import sparkdl.comm.flow.{Fetcher, ScheduledSends}
import sparkdl.comm.transport.{
  Blocks,
  ChunkAnswer,
  ChunkNetwork,
  ChunkPeer,
  PeerMessageReceiver,
  Transport
}

/** Endpoint of one executor for all ranks on it: its network, blocks, sessions and metrics. */
private[comm] final class PsNode(
    transport: Transport,
    conf: CommConf,
    registry: MetricRegistry,
    private[comm] val clock: Clock = SystemClock,
    threads: Option[ExecutorService] = None
) extends PeerMessageReceiver
    with Logging {
  import PsNode._

  private val sessions = new ConcurrentHashMap[(Long, Int), PsSession]

  val blocks: Blocks = transport.blocks

  /** Return what this executor and its host may still take. */
  def spareMemory: SpareMemory = SpareMemory.now(conf.containerBytes)

  private[ps] val served = new ServedBlocks
  val metrics = new PsMetrics(registry)
  registerGauge("ps.sessions")(sessions.size)
  // blocks that were requested and have not arrived
  registerGauge("ps.fetches")(links.fold(0)(_.fetcher.pending))
  // messages and blocks that are not confirmed
  registerGauge("ps.sends")(links.fold(0)(_.sender.pending))
  registerGauge("ps.chunks.sending")(links.fold(0)(_.network.sending))

  // Bytes of ranks that have left, which a peer still reads or seems to read.
  private val lingeringBytes = new AtomicLong
  registerGauge("ps.lingering.bytes")(lingeringBytes.get)

  /** Threads for work that would delay the network's threads too long. */
  val pool: ExecutorService =
    threads.getOrElse(Executors.newCachedThreadPool(daemons("sparkdl-ps")))

  // The network listens on a port, so it is open only while there are sessions. Most applications
  // have none.
  private val phases = new AtomicLong
  @volatile private var links: Option[Links] = None
  private var lastLeaveTime = clock.nanoTime
  @volatile private var isClosing = false
  // completes when this is closing and has no sessions
  private val allLeft = new CompletableFuture[Void]

  /** Address of the sessions of this executor. It stays the same while there are any. */
  def address: ChunkPeer = openLinks().network.address

  /** Fetcher of other executors' blocks. */
  def fetcher: Fetcher = openLinks().fetcher

  /** Return the number of the next phase of pulls or pushes on this executor. */
  def nextPhase(): Long = phases.incrementAndGet()

  /** Sender of data to other executors. */
  def sender: ScheduledSends = openLinks().sender

  /**
   * End the connections to `peers` that have died silently, as in a partition of the network. Wait
   * for that until `deadline` of the clock: a peer that answers late may be alive.
   */
  def endDeadConnections(peers: Iterable[ChunkPeer], deadline: Long): Unit =
    links.foreach { links =>
      try clock.await(links.network.probe(peers), deadline)
      catch { case _: TimeoutException => () }
    }

  private def openLinks(): Links = synchronized {
    if (links.isEmpty)
      try {
        val network = transport.openNetwork(conf.firstPort, conf.portCount, this)
        links = Some(Links(
          network,
          new Fetcher(network, clock),
          new ScheduledSends(network, clock, onPeerLost)
        ))
      } catch {
        case e: java.net.BindException =>
          val ports =
            s"spark.sparkdl.comm.ports=${conf.firstPort}-${conf.firstPort + conf.portCount - 1}"
          throw new CommException(
            CommException.Conf,
            s"$ports: no port of ${transport.host} is free: $e",
            cause = e
          )
      }
    links.get
  }

  private def closeIfIdle(): Unit = synchronized {
    if (sessions.isEmpty && clock.nanoTime - lastLeaveTime >= TimeUnit.SECONDS.toNanos(IdleSeconds))
      closeNetwork()
  }

  private def closeNetwork(): Unit = synchronized {
    links.foreach(_.network.close())
    links = None
  }

  private def registerGauge[T](name: String)(value: => T): Unit =
    registry.register(name, new Gauge[T] { override def getValue: T = value })

  /** Add a rank. Notices for it are kept from now on, even before it knows its peers. */
  def join(job: Long, rank: Int): PsSession = {
    val session = new PsSession(job, rank, this)
    if (sessions.putIfAbsent((job, rank), session) != null)
      throw new CommException(
        CommException.Protocol,
        f"rank $rank of job $job%x has joined already"
      )
    session
  }

  /**
   * Remove a rank. The port stays open for a while: its peers may be a little later, and a closed
   * connection means a lost rank to them.
   */
  def leave(session: PsSession): Unit = synchronized {
    sessions.remove((session.job, session.rank), session)
    lastLeaveTime = clock.nanoTime
    if (isClosing) completeIfAllLeft()
    else clock.after(TimeUnit.SECONDS.toNanos(IdleSeconds))(closeIfIdle())
  }

  private def completeIfAllLeft(): Unit = if (sessions.isEmpty) allLeft.complete(null)

  /**
   * Call `attempt`, which frees so many bytes, every second until it succeeds or the executor ends.
   */
  def retryToFree(bytes: Long)(attempt: => Boolean): Unit = {
    lingeringBytes.addAndGet(bytes)
    def again(): Unit = if (!isClosing) clock.after(TimeUnit.SECONDS.toNanos(1))(once())
    def once(): Unit = {
      val done =
        try attempt
        catch {
          case e: Throwable =>
            logWarning(s"The blocks of an ended session could not be removed; retrying: $e")
            false
        }
      if (done) lingeringBytes.addAndGet(-bytes) else again()
    }
    again()
  }

  /**
   * Deliver a message to its session. Drop it if this executor has none: the rank has left, and its
   * peers learn that from the gang.
   */
  override def onMessage(message: ByteBuffer): Unit = {
    def deliver(job: Long, to: Int)(take: PsSession => Unit): Unit = session(job, to).foreach(take)
    def warn(): Unit = logWarning(
      s"Dropping a message of ${message.remaining} bytes that this version does not know"
    )
    Notice
      .decode(message)
      .map(notice => deliver(notice.job, notice.to)(_.inbox.onNotice(notice)))
      .orElse(SegmentOffer.decode(message).map(offer =>
        deliver(offer.job, offer.to)(_.neighbors.onOffer(offer))
      ))
      .orElse(Contribution.decode(message).map(part =>
        deliver(part.job, part.to)(_.inbox.onContribution(part))
      ))
      .orElse(PeerFailed.decode(message).map(failure =>
        deliver(failure.job, failure.to)(_.onPeerFailed(failure))
      ))
      .getOrElse(if (message.hasRemaining) warn())
  }

  override def onRequest(answer: ChunkAnswer): Unit = {
    val block = served(answer.chunk.job, answer.chunk.block)
    links.foreach(_.sender.answer(answer, block.urgency, block.turn(answer.to)))
  }

  private def session(job: Long, rank: Int): Option[PsSession] = Option(sessions.get((job, rank)))

  override def onPeerLost(peer: ChunkPeer): Unit =
    Callbacks.callAll(sessions.values.asScala)(_.onPeerLost(peer))

  /**
   * Close the node after the bridge. Closing the bridge ends the connection of every session, and
   * then each session is closed by the thread that runs its operations. Closing a session from here
   * could unmap memory under a running operation.
   */
  def close(): Unit = {
    synchronized {
      isClosing = true
      completeIfAllLeft()
    }
    try clock.await(allLeft, clock.nanoTime + TimeUnit.SECONDS.toNanos(CloseSeconds))
    catch {
      case _: TimeoutException =>
        logWarning(s"${sessions.size} ranks did not leave within $CloseSeconds s")
    }
    pool.shutdownNow()
    closeNetwork()
  }
}

private[comm] object PsNode {
  private val IdleSeconds = 30L
  private val CloseSeconds = 5L

  private final case class Links(network: ChunkNetwork, fetcher: Fetcher, sender: ScheduledSends)

  private def daemons(name: String): ThreadFactory = {
    val count = new AtomicInteger
    task => {
      val thread = new Thread(task, s"$name-${count.incrementAndGet}")
      thread.setDaemon(true)
      thread
    }
  }
}

/** Entries of the plugin in Spark's metric registry, summed over the ranks of an executor. */
private[ps] final class PsMetrics(registry: MetricRegistry) {
  val pulledBytes = registry.counter("ps.pull.bytes")
  val pushedBytes = registry.counter("ps.push.bytes")
  val pullTime = registry.timer("ps.pull.time")
  val pushTime = registry.timer("ps.push.time")
  val aggregateTime = registry.timer("ps.aggregate.time")
}
