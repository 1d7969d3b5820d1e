package sparkdl.comm.bridge

import java.nio.channels.SocketChannel
import java.nio.file.{Files, Path, Paths}
import java.nio.file.attribute.PosixFilePermissions
import java.net.UnixDomainSocketAddress
import java.util.concurrent.TimeUnit

import org.slf4j.LoggerFactory

/** The directory of the bridge's socket, which only this user may enter. */
object SocketDirectory {
  val SocketName = "bridge"
  private val Prefix = "sparkdl-"

  /** A Unix socket's path has at most 107 bytes, and this directory and the socket in it need some of them. */
  private val MaxParentBytes = 60
  private val log = LoggerFactory.getLogger(SocketDirectory.getClass)

  /** Where sockets go: the JVM's directory for temporary files, or /tmp where that has too long a name. */
  def parent(temporary: String): Path =
    Paths.get(if (temporary.getBytes.length <= MaxParentBytes) temporary else "/tmp")

  def create(parent: Path): Path =
    Files.createTempDirectory(
      parent,
      Prefix,
      PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    )

  /** Removes what executors that were killed left: directories of this user whose socket nobody answers. */
  def sweep(parent: Path): Unit = {
    val found = Files.newDirectoryStream(parent, Prefix + "*")
    try
      found.forEach { left =>
        val abandoned = left.resolve(SocketName)
        try
          if (Files.exists(abandoned) && Files.isWritable(left) && old(left) && !answers(abandoned)) {
            Files.deleteIfExists(abandoned)
            Files.deleteIfExists(left)
          }
        catch { case e: java.io.IOException => log.debug(s"$left stays: $e") }
      }
    finally found.close()
  }

  /** A bridge that is being set up does not answer yet. */
  private def old(directory: Path): Boolean =
    Files.getLastModifiedTime(directory).toMillis < System.currentTimeMillis - TimeUnit.MINUTES.toMillis(1)

  private def answers(path: Path): Boolean =
    try {
      SocketChannel.open(UnixDomainSocketAddress.of(path)).close()
      true
    } catch { case _: java.net.ConnectException => false }
}
