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
import scala.util.control.NonFatal

import com.codahale.metrics.{Gauge, MetricRegistry}
import org.slf4j.LoggerFactory

import sparkdl.comm.{Clock, CommConf, CommException, SystemClock}
import sparkdl.comm.flow.{Fetches, ScheduledSends}
import sparkdl.comm.transport.{Answer, Blocks, ChunkNetwork, ChunkPeer, PeerMessageReceiver, Transport}

/** Endpoint of one executor for all ranks on it: its network, blocks, sessions and metrics. */
private[comm] final class PsNode(
    transport: Transport,
    conf: CommConf,
    registry: MetricRegistry,
    private[comm] val clock: Clock = SystemClock,
    threads: Option[ExecutorService] = None
) extends PeerMessageReceiver {
  import PsNode._

  private val sessions = new ConcurrentHashMap[(Long, Int), PsSession]

  val blocks: Blocks = transport.blocks
  private[ps] val served = new ServedBlocks
  val metrics = new PsMetrics(registry)
  registerGauge("ps.sessions")(sessions.size)
  registerGauge("ps.fetches")(open.fold(0)(_.fetches.pending)) // blocks that were requested and have not arrived
  registerGauge("ps.sends")(open.fold(0)(_.sends.pending)) // messages and blocks that are not confirmed
  registerGauge("ps.chunks.sending")(open.fold(0)(_.network.sending))

  // Bytes of ranks that have left, which a peer still reads or seems to read.
  private val lingering = new AtomicLong
  registerGauge("ps.lingering.bytes")(lingering.get)

  /** Threads for work that would delay the network's threads too long. */
  val pool: ExecutorService = threads.getOrElse(Executors.newCachedThreadPool(daemons("sparkdl-ps")))

  // The network listens on a port, so it is open only while there are sessions. Most applications have none.
  private val phases = new AtomicLong
  @volatile private var open: Option[Links] = None
  private var lastLeft = clock.nanoTime
  @volatile private var closing = false
  private val allLeft = new CompletableFuture[Void] // completes when this is closing and has no sessions

  /** Address of the sessions of this executor. It stays the same while there are any. */
  def address: ChunkPeer = opened().network.here

  /** Fetcher of other executors' blocks. */
  def fetches: Fetches = opened().fetches

  /** Return the number of the next phase of pulls or pushes on this executor. */
  def nextPhase(): Long = phases.incrementAndGet()

  /** Sender of data to other executors. */
  def sends: ScheduledSends = opened().sends

  private def opened(): Links = synchronized {
    if (open.isEmpty)
      try {
        val network = transport.openNetwork(conf.firstPort, conf.portCount, this)
        open = Some(Links(network, new Fetches(network, clock), new ScheduledSends(network, clock, lost)))
      } catch {
        case e: java.net.BindException =>
          val ports = s"spark.sparkdl.comm.ports=${conf.firstPort}-${conf.firstPort + conf.portCount - 1}"
          throw new CommException(CommException.Conf, s"$ports: no port of ${transport.host} is free: $e", cause = e)
      }
    open.get
  }

  private def closeIfIdle(): Unit = synchronized {
    if (sessions.isEmpty && clock.nanoTime - lastLeft >= TimeUnit.SECONDS.toNanos(IdleSeconds)) closeNetwork()
  }

  private def closeNetwork(): Unit = synchronized {
    open.foreach(_.network.close())
    open = None
  }

  private def registerGauge[T](name: String)(value: => T): Unit =
    registry.register(name, new Gauge[T] { override def getValue: T = value })

  /** Add a rank. Notices for it are kept from now on, even before it knows its peers. */
  def join(job: Long, rank: Int): PsSession = {
    val session = new PsSession(job, rank, this)
    if (sessions.putIfAbsent((job, rank), session) != null)
      throw new CommException(CommException.Protocol, f"rank $rank of job $job%x has joined already")
    session
  }

  /**
   * Remove a rank. The port stays open for a while: its peers may be a little later, and a closed connection means a
   * lost rank to them.
   */
  def leave(session: PsSession): Unit = synchronized {
    sessions.remove((session.job, session.rank), session)
    lastLeft = clock.nanoTime
    if (closing) completeIfAllLeft() else clock.after(TimeUnit.SECONDS.toNanos(IdleSeconds))(closeIfIdle())
  }

  private def completeIfAllLeft(): Unit = if (sessions.isEmpty) allLeft.complete(null)

  /** Call `attempt`, which frees so many bytes, every second until it succeeds or the executor ends. */
  def retryToFree(bytes: Long)(attempt: => Boolean): Unit = {
    lingering.addAndGet(bytes)
    def again(): Unit = if (!closing) clock.after(TimeUnit.SECONDS.toNanos(1))(once())
    def once(): Unit = {
      val done =
        try attempt
        catch {
          case NonFatal(e) =>
            log.warn("The blocks of an ended session could not be removed; retrying: {}", e.toString)
            false
        }
      if (done) lingering.addAndGet(-bytes) else again()
    }
    again()
  }

  /**
   * Deliver a message to its session. Drop it if this executor has none: the rank has left, and its peers learn that
   * from the gang.
   */
  override def received(message: ByteBuffer): Unit = {
    def deliver(job: Long, to: Int)(take: PsSession => Unit): Unit = session(job, to).foreach(take)
    Notice
      .decode(message)
      .map(notice => deliver(notice.job, notice.to)(_.incoming.noticed(notice)))
      .orElse(SegmentOffer.decode(message).map(offer =>
        deliver(offer.job, offer.to)(_.incoming.neighbours.offered(offer))
      ))
      .orElse(Contribution.decode(message).map(part => deliver(part.job, part.to)(_.incoming.contributed(part))))
      .orElse(Farewell.decode(message).map(farewell => deliver(farewell.job, farewell.to)(_.peerFailed(farewell))))
      .getOrElse(log.warn("Dropping a message of {} bytes that this version does not know", message.remaining))
  }

  override def asked(answer: Answer): Unit = {
    val block = served(answer.chunk.job, answer.chunk.block)
    open.foreach(_.sends.answer(answer, block.urgency, block.turn(answer.to)))
  }

  private def session(job: Long, rank: Int): Option[PsSession] = Option(sessions.get((job, rank)))

  override def lost(peer: ChunkPeer): Unit = sessions.values.asScala.foreach(_.peerLost(peer))

  /**
   * Close the node after the bridge. Closing the bridge ends the connection of every session, and then each session is
   * closed by the thread that runs its operations. Closing a session from here could unmap memory under a running
   * operation.
   */
  def close(): Unit = {
    synchronized {
      closing = true
      completeIfAllLeft()
    }
    try clock.await(allLeft, clock.nanoTime + TimeUnit.SECONDS.toNanos(CloseSeconds))
    catch { case _: TimeoutException => log.warn("{} ranks did not leave within {} s", sessions.size, CloseSeconds) }
    pool.shutdownNow()
    closeNetwork()
  }
}

private[comm] object PsNode {
  private val IdleSeconds = 30L
  private val CloseSeconds = 5L
  private val log = LoggerFactory.getLogger(classOf[PsNode])

  private final case class Links(network: ChunkNetwork, fetches: Fetches, sends: ScheduledSends)

  private def daemons(name: String): ThreadFactory = {
    val count = new AtomicInteger
    task => {
      val thread = new Thread(task, s"$name-${count.incrementAndGet}")
      thread.setDaemon(true)
      thread
    }
  }
}
